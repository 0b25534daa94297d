"""The suspects of a failed check: each module tries the corrections of one family of mistakes."""
