"""The transforms, from a function to its derivatives: `reverse`, `pullback`, `forward`, `linearized`, `products`."""
