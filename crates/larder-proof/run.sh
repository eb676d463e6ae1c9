#!/usr/bin/env bash
# Proves and measures Larder on this machine's first GPU. `run.sh --help` lists the parts;
# `run.sh torch [PART ...]` runs PyTorch programs on Larder and on PyTorch's own allocator;
# `run.sh threads` measures malloc and free with many threads, `run.sh bench` with one and two;
# `run.sh parity --seeds N` compares ours with PyTorch's allocator on random scripts.
set -u
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# cuBLAS comes with CUDA or with a Python package; compute-sanitizer comes with CUDA.
folders=(/usr/local/cuda/lib64 /usr/local/cuda/targets/x86_64-linux/lib)
packages="$(python3 -c 'import site; print("\n".join(site.getsitepackages()))' 2>/dev/null)"
while IFS= read -r folder; do
    [ -n "$folder" ] && folders+=("$folder"/nvidia/{cu13,cublas,nccl,nvshmem}/lib)
done <<<"$packages"
for folder in "${folders[@]}"; do
    [ -d "$folder" ] && LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder"
done
# NCCL comes under the name of its version alone; the bindings that make communicators look for the plain one.
for folder in "${folders[@]}"; do
    [ -e "$folder/libnccl.so.2" ] && ln -sfn "$folder/libnccl.so.2" "$here/libnccl.so" && break
done
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}:$here"
export PATH="$PATH:/usr/local/cuda/bin:/usr/local/cuda/compute-sanitizer"
if [[ "${1:-}" =~ ^(threads|bench|parity)$ ]]; then
    # These need no GPU, and are here for the many cores.
    exec "$here/threads/testkit" "$@"
fi
if [ "${1:-}" = torch ]; then
    # Larder under PyTorch: the wheel goes into the Python that has torch, and other people's libraries if they were brought.
    shift
    if [ -d "${BUNDLE:=$here/../bundle}" ]; then
        python3 "$here/../../torch/card/bundle.py" unpack "$BUNDLE" || exit 1
    fi
    python3 -m pip install --quiet --no-index --no-deps --force-reinstall "$here"/*.whl || exit 1
    python3 -m larder --compile || exit 1
    exec python3 "$here/../../torch/card/run.py" "$@"
fi
exec "$here/larder-proof" "$@"
