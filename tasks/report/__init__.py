"""Pages: corpus, dataset, training, evaluation and model, and the frame, charts and wording that they share."""
