"""The stages of a run, one package each; they meet through :mod:`.artifacts` alone."""
