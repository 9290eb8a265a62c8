"""Sockets between our own processes: the control boundary and the runs boundary. Decides nothing; wired by compose."""
