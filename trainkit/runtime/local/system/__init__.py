"""Operating system services for processes and the devices of the machine."""
