"""From files to rows of text: extraction in subprocesses, segments, snapshots, import and export."""
