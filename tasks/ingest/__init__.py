"""From files to rows of text: extraction in killable processes, segments, snapshots, import and export."""
