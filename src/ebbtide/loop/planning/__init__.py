"""From measured sizes and costs to the schedule with the least predicted time."""
