"""The user's eager module seen as a state machine: what it holds, what changes, how to drive it."""
