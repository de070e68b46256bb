"""Text from pictures: opening images, and Tesseract."""
