"""Programs: functions traced once, whose memory is planned before they run."""
