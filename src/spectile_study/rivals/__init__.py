"""The paper's rivals: fetched, built and loaded on the user's own machine; nothing of theirs is part of this project."""
