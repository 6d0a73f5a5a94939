"""The measured claims of Ebbtide, one module a claim; see bench/README.md."""
