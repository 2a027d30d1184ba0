"""What is fitted: the plan, its cost, what the stars tell of it."""
