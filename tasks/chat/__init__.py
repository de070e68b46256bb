"""Chat tuning: pairs of questions and answers in documents, their template and token ids, and held-out answers."""
