"""The journal of a time loop, and its way back to the last place after a kill."""
