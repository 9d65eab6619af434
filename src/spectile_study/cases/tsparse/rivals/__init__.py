"""The paper's rivals: fetched, built and loaded by the user; nothing of theirs is part of this project."""
