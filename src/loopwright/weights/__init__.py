"""Model files: where they come from, where they are kept, how they are read. Never holds a tensor of a device."""
