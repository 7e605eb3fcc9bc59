"""The native modules: loading, registration and the custom calls."""
