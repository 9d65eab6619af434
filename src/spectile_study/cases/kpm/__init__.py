"""Cases of KPM."""
