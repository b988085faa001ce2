"""What a recording's requests make of an allocator: the recorded one followed exactly, or another tried."""
