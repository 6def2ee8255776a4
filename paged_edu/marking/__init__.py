"""Marking a class's notebooks: ``paged-edu mark``. What is marked is the code, not the outputs that are stored beside it.

Two processes take part. The *judge* (`judge`, `marks`) has read every notebook and loaded every exercise before the first line of a student's code
runs; it never runs one. A *worker* (`worker`), a fresh interpreter for each exercise of each notebook, runs what the function needs (`cells`) and
answers calls: arguments go to it, values come back as plain data (`wire`), and the judge compares. A worker has an empty folder, few environment
variables, and a time limit; it is killed with its children.

So a notebook can neither replace `check` nor lend its answer to another, and whatever it does ends with its worker. It is no sandbox: the code runs
with your rights, may read and delete your files, and may look up the engine's answers in the package. Mark strangers' code in a container.
"""
