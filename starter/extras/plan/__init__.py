"""What messages will need in cores, memory and disk, computed from figures that were measured."""
