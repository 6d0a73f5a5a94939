"""What the state, the inputs and the code of a time loop are made of."""
