"""The parts of kvlab's Python side that make real input: texts, a Hugging Face forward, and `kvlab.capture/1` files.

One file, one idea:

| file           | idea                                                                        |
|----------------|-----------------------------------------------------------------------------|
| `cli.py`       | errors as one sentence and exit code 2                                      |
| `atomic.py`    | an output file is whole or absent                                           |
| `full_disk.py` | a write that fails is told, not a crash                                     |
| `probes.py`    | which positions' queries are stored                                         |
| `passages.py`  | a text file becomes token ids [B, T]                                        |
| `gguf_once.py` | a GGUF file's header is parsed once                                         |
| `loading.py`   | a name, folder or GGUF file becomes a float32 model                         |
| `attention.py` | which modules are Llama-like attention; q, k, v at its input, checked       |
| `rope.py`      | which tensor is the key before RoPE, and how RoPE pairs its channels        |
| `sink.py`      | a recorded layer becomes datasets and attributes                            |
| `schema.py`    | the HDF5 layout                                                             |
| `capture.py`   | all of these in order: the only way a capture is made                       |
| `rdata.py`     | reads R's lazy-load data without R                                          |
| `debian.py`    | gets at the files of a Debian package without installing it                 |
| `reflow.py`    | hard-wrapped lines become paragraphs                                        |

torch and transformers are imported only where a model is run, so that `--help` and mistakes in the arguments answer at once.
"""
