"""Human votes on pairs of edits: a page to vote on, Elo ratings, and how a judge's accuracy ranks beside them."""
