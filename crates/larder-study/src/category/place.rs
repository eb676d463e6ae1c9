//! Places: which part of a program a call stack stands in, by the files and functions of PyTorch
//! and of what people train with.

use std::collections::HashMap;

use larder_snapshot::{Frame, Snapshot, StackId};

/// Where in a program something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// A model is made, moved or loaded.
    Building,
    /// Parameters that are shared out among ranks are gathered.
    Gathering,
    /// Gradients are shared out among ranks.
    Reducing,
    /// Room for gradients is made before there are any.
    Bucketing,
    /// A distributed wrapper does something that is gone soon.
    Passing,
    /// A model runs.
    Forward,
    /// Gradients are computed, by threads that have no Python as a rule.
    Backward,
    /// An optimizer makes what it keeps.
    Keeping,
    /// An optimizer updates the parameters.
    Stepping,
    /// Gradients are dropped.
    Zeroing,
    /// A cache of keys and values grows.
    Caching,
    /// A batch comes to the card.
    Loading,
    /// None of these: the program itself.
    Outside,
    /// There is nothing to tell it by.
    Unknown,
}

/// A part of a file's path, the functions in it (all, where none is named), and the place.
type Rule = (&'static str, &'static [&'static str], Place);

/// The first that fits counts, the innermost frame first.
const RULES: &[Rule] = &[
    // PyTorch's optimizers and those of others.
    ("/torch/optim/", &["zero_grad"], Place::Zeroing),
    ("/torch/optim/", &["_init_group", "_init_state"], Place::Keeping),
    ("/torch/optim/", &[], Place::Stepping),
    ("/apex/optimizers/", &["zero_grad"], Place::Zeroing),
    ("/apex/optimizers/", &[], Place::Stepping),
    ("/bitsandbytes/optim/", &["init_state", "get_state_buffer"], Place::Keeping),
    ("/bitsandbytes/optim/", &[], Place::Stepping),
    ("/transformer_engine/pytorch/optimizers/", &["_initialize_state"], Place::Keeping),
    ("/transformer_engine/pytorch/optimizers/", &[], Place::Stepping),
    ("/deepspeed/ops/adam/", &[], Place::Stepping),
    // Megatron.
    ("/megatron/core/optimizer/", &["zero_grad"], Place::Zeroing),
    (
        "/megatron/core/optimizer/",
        &[
            "__init__",
            "_build_model_and_main_param_groups",
            "_init_optimizer_states_with_dummy_values",
        ],
        Place::Keeping,
    ),
    ("/megatron/core/optimizer/", &[], Place::Stepping),
    ("/megatron/core/distributed/param_and_grad_buffer.py", &["__init__"], Place::Bucketing),
    ("/megatron/core/distributed/", &["zero_grad_buffer"], Place::Zeroing),
    ("/megatron/core/tensor_parallel/layers.py", &["__init__"], Place::Building),
    ("/megatron/core/inference/contexts/", &[], Place::Caching),
    // FSDP2 and FSDP.
    (
        "/fsdp/_fully_shard/_fsdp_param.py",
        &["init_all_gather_outputs", "alloc_all_gather_outputs", "init_unsharded_param"],
        Place::Gathering,
    ),
    ("/fsdp/_fully_shard/_fsdp_param.py", &["to_accumulated_grad_if_needed"], Place::Reducing),
    (
        "/fsdp/_fully_shard/_fsdp_param.py",
        &["_init_sharded_param", "reset_sharded_param", "__init__"],
        Place::Building,
    ),
    ("/fsdp/_fully_shard/_fsdp_collectives.py", &["foreach_reduce"], Place::Reducing),
    ("/fsdp/_fully_shard/_fsdp_collectives.py", &["foreach_all_gather"], Place::Gathering),
    (
        "/fsdp/_fully_shard/_fsdp_collectives.py",
        &["allocate", "split_with_sizes_copy"],
        Place::Outside,
    ),
    ("/fsdp/_fully_shard/", &[], Place::Passing),
    ("/fsdp/_flat_param.py", &["_alloc_padded_unsharded_flat_param"], Place::Gathering),
    (
        "/fsdp/_flat_param.py",
        &["_get_shard", "flatten_tensors", "_get_unflat_views"],
        Place::Building,
    ),
    ("/fsdp/_runtime_utils.py", &["_reduce_grad", "_get_reduce_scatter_tensors"], Place::Reducing),
    // DDP.
    ("/torch/nn/parallel/distributed.py", &["_ddp_init_helper", "__init__"], Place::Bucketing),
    // Caches of keys and values.
    ("/transformers/cache_utils.py", &[], Place::Caching),
    (
        "/vllm/",
        &["_allocate_kv_cache", "_allocate_kv_cache_tensors", "initialize_kv_cache"],
        Place::Caching,
    ),
    ("/sglang/srt/mem_cache/", &[], Place::Caching),
    // Batches.
    ("/accelerate/utils/operations.py", &["send_to_device", "_send_to_device"], Place::Loading),
    ("/transformers/trainer.py", &["_prepare_input", "_prepare_inputs"], Place::Loading),
    ("/torch/utils/data/", &[], Place::Loading),
    ("/lightning/fabric/utilities/", &["move_data_to_device", "batch_to"], Place::Loading),
    ("/pytorch_lightning/utilities/", &["move_data_to_device", "batch_to"], Place::Loading),
    // Models that are made, moved and loaded.
    ("/torch/nn/modules/module.py", &["zero_grad"], Place::Zeroing),
    (
        "/torch/nn/modules/module.py",
        &["_apply", "convert", "to", "cuda", "half", "bfloat16", "to_empty", "load_state_dict"],
        Place::Building,
    ),
    ("/torch/nn/parameter.py", &[], Place::Building),
    ("/torch/nn/modules/", &["__init__", "reset_parameters", "register_buffer"], Place::Building),
    (
        "/transformers/",
        &["from_pretrained", "_load_state_dict_into_meta_model", "_load_pretrained_model"],
        Place::Building,
    ),
    ("/safetensors/", &[], Place::Building),
    ("/vllm/model_executor/model_loader/", &[], Place::Building),
    // A backward pass in a thread that has Python.
    ("/torch/autograd/graph.py", &["_engine_run_backward"], Place::Backward),
    ("/torch/autograd/__init__.py", &["backward", "grad", "_make_grads"], Place::Backward),
    ("/torch/utils/checkpoint.py", &["recompute_fn", "unpack_hook"], Place::Forward),
    // A model that runs.
    ("/torch/nn/modules/module.py", &["_call_impl", "_wrapped_call_impl", "inner"], Place::Forward),
];

/// Where the innermost frame of an autograd thread's Python is entered.
const FUNCTIONS: &str = "/torch/autograd/function.py";
/// What the engine of autograd is called in frames of C++.
const ENGINE: &str = "torch::autograd::";

/// The place of every stack of a snapshot that was asked for.
pub(super) struct Places<'a> {
    snapshot: &'a Snapshot,
    known: HashMap<StackId, Place>,
}

impl<'a> Places<'a> {
    pub(super) fn new(snapshot: &'a Snapshot) -> Places<'a> {
        Places { snapshot, known: HashMap::new() }
    }

    /// The place of a stack. One without a frame of Python is a thread of autograd's.
    pub(super) fn of(&mut self, stack: Option<StackId>) -> Place {
        let Some(stack) = stack else { return Place::Backward };
        if let Some(&place) = self.known.get(&stack) {
            return place;
        }
        let frames: Vec<Frame> = self.snapshot.stack(stack).collect();
        let frames: Vec<(&str, &str)> = frames
            .iter()
            .map(|frame| (self.snapshot.text(frame.filename), self.snapshot.text(frame.name)))
            .collect();
        let place = place_of(&frames);
        self.known.insert(stack, place);
        place
    }
}

/// The place of the frames of a stack, innermost first, each a file and a function.
pub(super) fn place_of(frames: &[(&str, &str)]) -> Place {
    let mut is_python = false;
    for &(file, function) in frames {
        is_python |= is_of_python(file);
        // Newer Pythons name the class of a function as well.
        let name = function.rsplit('.').next().unwrap_or(function);
        let fits = |(part, functions, _): &&Rule| {
            file.contains(part) && (functions.is_empty() || functions.contains(&name))
        };
        match RULES.iter().find(fits) {
            // It is its caller that says what it is for.
            Some((_, _, Place::Outside)) | None => {}
            Some(&(_, _, place)) => return place,
        }
        if !is_python && function.contains(ENGINE) && function.contains("Engine::") {
            return Place::Backward;
        }
    }
    match frames.iter().rfind(|(file, _)| is_of_python(file)) {
        Some((file, _)) if file.ends_with(FUNCTIONS) => Place::Backward,
        Some(_) => Place::Outside,
        None => Place::Backward,
    }
}

/// Whether a frame is one of Python.
pub(super) fn is_of_python(file: &str) -> bool {
    file.strip_suffix(".py").is_some() || file.starts_with('<')
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODULE: &str = "/site-packages/torch/nn/modules/module.py";

    #[test]
    fn the_innermost_frame_that_says_something_counts() {
        let main = ("/train/train.py", "<module>");
        let forward = [("/train/net.py", "forward"), (MODULE, "_call_impl"), main];
        assert_eq!(place_of(&forward), Place::Forward);
        let cache = [("/site-packages/transformers/cache_utils.py", "update"), forward[0]];
        assert_eq!(place_of(&[&cache[..], &forward].concat()), Place::Caching);
        // A forward pass inside an optimizer's step is one.
        let optimizer = ("/site-packages/torch/optim/lbfgs.py", "step");
        assert_eq!(place_of(&[forward[0], forward[1], optimizer, main]), Place::Forward);
        assert_eq!(place_of(&[optimizer, main]), Place::Stepping);
        assert_eq!(place_of(&[main]), Place::Outside);
    }

    #[test]
    fn threads_of_autograd_are_backward_passes() {
        assert_eq!(place_of(&[]), Place::Backward);
        let function = ("/site-packages/torch/autograd/function.py", "apply");
        let own = ("/train/ops.py", "backward");
        assert_eq!(place_of(&[own, function]), Place::Backward);
        let cpp = ("??", "torch::autograd::Engine::thread_main(std::shared_ptr<Task> const&)");
        assert_eq!(place_of(&[("??", "at::native::mm"), cpp]), Place::Backward);
        // What is computed once more in it is a forward pass.
        let again = ("/site-packages/torch/utils/checkpoint.py", "Checkpoint.unpack_hook");
        assert_eq!(place_of(&[own, again]), Place::Forward);
    }

    #[test]
    fn wrappers_of_megatron_and_fsdp_are_known() {
        let buffer = "/megatron/core/distributed/param_and_grad_buffer.py";
        assert_eq!(place_of(&[(buffer, "__init__")]), Place::Bucketing);
        let sharded = "/torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py";
        let forward = [(MODULE, "inner"), (MODULE, "_call_impl")];
        let reduce = [(sharded, "allocate"), (sharded, "foreach_reduce")];
        assert_eq!(place_of(&reduce), Place::Reducing);
        let gather = [(sharded, "allocate"), (sharded, "foreach_all_gather")];
        assert_eq!(place_of(&[&gather[..], &forward].concat()), Place::Gathering);
        let copy = [(sharded, "foreach_all_gather_copy_out")];
        assert_eq!(place_of(&[&copy[..], &forward].concat()), Place::Passing);
    }
}
