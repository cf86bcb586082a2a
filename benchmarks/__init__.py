"""Ratios between torchrb, its plain path, its peers and the limits of the machine, measured side by side in one run."""
