"""TextCraft: crafting in a recipe book."""
