"""Commands that examine the machine, the installation and runs: doctor, verify."""
