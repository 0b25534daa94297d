"""Between text and the model: tokenizers turn text into ids, corpora are read and split, ids become batches.

Nothing is imported here, so that reading windows of ids does not load a tokenizer: import from
`numpy_gpt.text.tokenizers`, `numpy_gpt.text.corpus` and `numpy_gpt.text.batches`.
"""
