"""Everyday draws: random problems that nobody chose, by public calls, beside the strongest alternative of the same run.

``strata`` draws numbers, ``spamm``, ``tsparse``, ``evd`` and ``kpm`` the problems of each system; ``measure`` takes one
draw, ``run`` many; ``frame`` is what is kept, ``drawing`` what is drawn of it, ``predict`` what the cost models say of
devices that are not at hand.
"""
