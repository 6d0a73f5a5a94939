"""Complete problems that `ebbtide demo` runs, each with a report of prediction beside measurement."""
