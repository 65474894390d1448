"""From a value to a committed checkpoint: file images, the upload of a part, and how a save ends."""
