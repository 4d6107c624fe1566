"""What ``physedit doctor`` looks at before a run is started."""
