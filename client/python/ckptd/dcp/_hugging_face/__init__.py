"""The layout of Hugging Face: safetensors files."""
