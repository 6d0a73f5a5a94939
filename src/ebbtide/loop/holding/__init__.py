"""What a running time loop holds, and what of it it gives up."""
