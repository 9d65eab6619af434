"""The product on sliced ELLPACK."""
