"""Commands that examine the machine, the installation and a run: doctor, verify."""
