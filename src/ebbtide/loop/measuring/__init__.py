"""The first step of a time loop is run and measured, and the first plan is made."""
