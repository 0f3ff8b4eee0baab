"""Operating system services: processes, and the devices of the machine."""
