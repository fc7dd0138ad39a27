"""Makes states explicit, and proves the result equal to eager in torch."""
