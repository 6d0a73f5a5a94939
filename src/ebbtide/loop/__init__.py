"""The differentiable time loop."""
