"""What training an editor takes, told from its real architecture on the meta device: nothing is loaded or computed."""
