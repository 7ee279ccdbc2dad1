"""Octavo beside other engines, on one machine and the same work: python -m benchmarks.compare.

Each engine runs in processes of its own, in turns (A B B A ...), on dummy weights of the same
shapes, with the same prompts: token ids, greedy, no end of sequence, no prefix cache, no text.
A pass over the 8B shape takes Octavo about 85 s, vLLM about 150 s; choose parts of it by
``--models`` and ``--workloads``, and join files of several runs by ``--merge``.
"""
