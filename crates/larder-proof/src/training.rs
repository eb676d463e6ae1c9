//! A small training loop with cuBLAS: the same steps with `cudarc`'s own allocation and with ours.

use std::sync::Arc;
use std::time::Instant;

use cudarc::cublas::sys::cublasOperation_t::{self, CUBLAS_OP_N, CUBLAS_OP_T};
use cudarc::cublas::{CudaBlas, Gemm, GemmConfig};

use cudarc::driver::{
    CudaFunction, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::Ptx;
use larder::{Allocator, Buffer, Stream};
use larder_core::types::{Bytes, MIB};
use larder_cuda::driver;
use larder_cuda::sys::CUmemPool_attribute as PoolAttribute;
use larder_sim::random::Random;

use crate::figures::Figures;
use crate::rig::{Explain, KERNELS, Rig};

/// What is trained.
struct Model {
    name: &'static str,
    /// The width of each layer's input, and of the last one's output.
    widths: [usize; 7],
    /// Batches have from an eighth of this to this many samples.
    batch_max: u64,
    /// Whether the host is what limits it. Then our allocation has to make it faster; where the
    /// GPU is, no allocation can.
    host_bound: bool,
}

const MODELS: [Model; 2] = [
    Model {
        name: "small",
        widths: [256, 640, 640, 640, 640, 640, 128],
        batch_max: 128,
        host_bound: true,
    },
    Model {
        name: "large",
        widths: [1024, 2048, 2048, 2048, 2048, 2048, 512],
        batch_max: 768,
        host_bound: false,
    },
];
const RATE: f32 = 0.05;
/// How often the loop waits for the GPU, as a program does that looks at its loss.
const STEPS_PER_LOOK: usize = 10;
const ROUNDS: usize = 3;

/// Where the loop's memory comes from.
trait Source {
    type Memory: DevicePtr<f32> + DevicePtrMut<f32>;

    fn alloc(&self, len: usize) -> Result<Self::Memory, String>;

    /// The most bytes held of the card so far.
    fn peak_bytes(&self) -> Result<u64, String>;
}

/// `cudarc`'s own allocation: the driver's pool.
struct Theirs<'a> {
    rig: &'a Rig,
    stream: Arc<CudaStream>,
}

impl Source for Theirs<'_> {
    type Memory = CudaSlice<f32>;

    fn alloc(&self, len: usize) -> Result<CudaSlice<f32>, String> {
        // SAFETY: everything is written before it is read.
        unsafe { self.stream.alloc(len) }.or_say("cudarc's allocation")
    }

    fn peak_bytes(&self) -> Result<u64, String> {
        let pool = driver::default_pool(self.rig.context().cu_device()).or_say("the pool")?;
        let high = PoolAttribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
        // SAFETY: the default pool lives as long as the device.
        unsafe { driver::pool_attribute(pool, high) }.or_say("the pool's peak")
    }
}

/// Our allocation.
struct Ours {
    allocator: Allocator,
    stream: Stream,
}

impl Source for Ours {
    type Memory = Buffer<f32>;

    fn alloc(&self, len: usize) -> Result<Buffer<f32>, String> {
        self.allocator.alloc(len, &self.stream).or_say("our allocation")
    }

    fn peak_bytes(&self) -> Result<u64, String> {
        Ok(self.allocator.stats().reserved_bytes.all.peak as u64)
    }
}

pub(crate) fn run(rig: &Rig, short: bool) -> Result<String, String> {
    let steps = if short { 20 } else { 300 };
    let heads = ["model", "memory from", "us per step", "peak MiB held", "sum of weights"];
    let mut figures = Figures::new("training", &heads);
    let mut verdicts = Vec::new();
    for model in &MODELS {
        let medians = compare(&Trainer::new(rig, model, steps)?)?;
        for (name, median) in CONTESTANTS.iter().zip(&medians) {
            figures.row(&[
                model.name.to_owned(),
                (*name).to_owned(),
                format!("{:.1}", median.step_us),
                format!("{:.1}", median.peak_bytes as f64 / MIB as f64),
                format!("{:.6}", median.sum),
            ]);
        }
        verdicts.push(verdict(model, &medians, short));
    }
    figures.write()?;
    Ok(verdicts.into_iter().collect::<Result<Vec<_>, _>>()?.join("; "))
}

/// Who is compared; ours are named by their settings.
const CONTESTANTS: [&str; 5] = [
    "cudarc",
    "cudarc, event tracking off",
    "larder",
    "larder, expandable_segments:True",
    "larder, expandable_segments:True,page_size_mb:2",
];

/// The median reading of each contestant.
fn compare(trainer: &Trainer<'_>) -> Result<Vec<Reading>, String> {
    let mut readings: Vec<Vec<Reading>> = vec![Vec::new(); CONTESTANTS.len()];
    // In turn, so that whatever else goes on hits all of them.
    for _ in 0..ROUNDS {
        readings[0].push(trainer.theirs(true)?);
        readings[1].push(trainer.theirs(false)?);
        for (at, name) in CONTESTANTS.iter().enumerate().skip(2) {
            let settings =
                name.split_once(", ").map_or("expandable_segments:False", |(_, settings)| settings);
            readings[at].push(trainer.ours(settings)?);
        }
    }
    let median = |mut rounds: Vec<Reading>| {
        rounds.sort_by(|a, b| a.step_us.total_cmp(&b.step_us));
        rounds[ROUNDS / 2]
    };
    Ok(readings.into_iter().map(median).collect())
}

/// All must have learnt the same, and one of ours must need no more memory than the best of theirs,
/// and be faster where the host is what limits the loop.
fn verdict(model: &Model, medians: &[Reading], short: bool) -> Result<String, String> {
    let sum = medians[0].sum;
    if !sum.is_finite() {
        return Err(format!("{}: the weights end at {sum}", model.name));
    }
    if let Some(other) = medians.iter().find(|other| (other.sum - sum).abs() > 1e-3 * sum.abs()) {
        return Err(format!("the weights end at {} and at {sum}", other.sum));
    }
    let (theirs, ours) = medians.split_at(2);
    let time_us = theirs.iter().map(|reading| reading.step_us).fold(f64::MAX, f64::min);
    let peak_bytes = theirs.iter().map(|reading| reading.peak_bytes).min().unwrap_or(0);
    let fits = |our: &&Reading| {
        let fast_enough = our.step_us < time_us || !model.host_bound;
        short || (fast_enough && our.peak_bytes <= peak_bytes)
    };
    match ours.iter().filter(fits).min_by(|a, b| a.step_us.total_cmp(&b.step_us)) {
        Some(best) => Ok(format!(
            "{}: {:.1} us a step in {} where cudarc needs {time_us:.1} us in {}",
            model.name,
            best.step_us,
            Bytes(best.peak_bytes),
            Bytes(peak_bytes)
        )),
        None => Err(format!(
            "{}: none of ours does as well as {time_us:.1} us a step in {}",
            model.name,
            Bytes(peak_bytes)
        )),
    }
}

/// What came of one run.
#[derive(Clone, Copy, Debug)]
struct Reading {
    step_us: f64,
    peak_bytes: u64,
    /// The sum of all weights at the end, by which runs are compared.
    sum: f64,
}

/// What all runs share.
struct Trainer<'a> {
    rig: &'a Rig,
    model: &'a Model,
    stream: Arc<CudaStream>,
    blas: CudaBlas,
    kernels: Kernels,
    batches: Vec<usize>,
}

struct Kernels {
    uniform: CudaFunction,
    relu: CudaFunction,
    relu_backward: CudaFunction,
    loss_gradient: CudaFunction,
    descend: CudaFunction,
}

impl<'a> Trainer<'a> {
    fn new(rig: &'a Rig, model: &'a Model, steps: usize) -> Result<Trainer<'a>, String> {
        let stream = rig.stream()?;
        let blas = CudaBlas::new(Arc::clone(&stream)).or_say("cuBLAS")?;
        let module = rig.context().load_module(Ptx::from_src(KERNELS)).or_say("the kernels")?;
        let kernel = |name: &str| module.load_function(name).or_say(name);
        let kernels = Kernels {
            uniform: kernel("uniform")?,
            relu: kernel("relu")?,
            relu_backward: kernel("relu_backward")?,
            loss_gradient: kernel("loss_gradient")?,
            descend: kernel("descend")?,
        };
        let mut random = Random::new(3);
        let mut batch = || random.between(model.batch_max / 8, model.batch_max) as usize;
        let batches = (0..steps).map(|_| batch()).collect();
        Ok(Trainer { rig, model, stream, blas, kernels, batches })
    }

    fn theirs(&self, tracking: bool) -> Result<Reading, String> {
        let context = self.rig.context();
        let pool = driver::default_pool(context.cu_device()).or_say("the pool")?;
        context.synchronize().or_say("waiting for the GPU")?;
        let high = PoolAttribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
        // SAFETY: the default pool lives as long as the device, and nothing is live in it.
        unsafe {
            driver::trim_pool(pool).or_say("the pool")?;
            driver::set_pool_attribute(pool, high, 0).or_say("the pool")?;
        }
        if !tracking {
            // SAFETY: all work of the run is on one stream.
            unsafe { context.disable_event_tracking() };
        }
        let theirs = Theirs { rig: self.rig, stream: Arc::clone(&self.stream) };
        let reading = self.train(&theirs);
        // SAFETY: nothing that was made without events is left.
        unsafe { context.enable_event_tracking() };
        reading
    }

    fn ours(&self, settings: &str) -> Result<Reading, String> {
        let builder = Allocator::builder().settings(settings).or_say(settings)?;
        let allocator = builder.cuda_device(Arc::clone(&self.rig.device)).or_say("an allocator")?;
        let stream = Stream::from(&self.stream);
        self.train(&Ours { allocator, stream })
    }

    /// The loop itself: forward, backward, update, with batches of changing size.
    fn train<S: Source>(&self, source: &S) -> Result<Reading, String> {
        let mut weights = Vec::new();
        for (seed, pair) in self.model.widths.windows(2).enumerate() {
            let mut layer = source.alloc(pair[0] * pair[1])?;
            let scale = (3.0 / pair[0] as f32).sqrt();
            self.uniform(&mut layer, pair[0] * pair[1], seed as u32 + 1, scale)?;
            weights.push(layer);
        }
        // The first steps fill caches and load libraries.
        let warm_up = STEPS_PER_LOOK.min(self.batches.len());
        for (step, &batch) in self.batches[..warm_up].iter().enumerate() {
            self.step(source, &mut weights, batch, step as u32)?;
        }
        self.stream.synchronize().or_say("waiting for the stream")?;
        let begin = Instant::now();
        for (step, &batch) in self.batches.iter().enumerate() {
            self.step(source, &mut weights, batch, step as u32)?;
            if step % STEPS_PER_LOOK == STEPS_PER_LOOK - 1 {
                self.stream.synchronize().or_say("waiting for the stream")?;
            }
        }
        self.stream.synchronize().or_say("waiting for the stream")?;
        let step_us = begin.elapsed().as_secs_f64() * 1e6 / self.batches.len() as f64;
        let peak_bytes = source.peak_bytes()?;
        let mut sum = 0.0;
        for layer in &weights {
            let values = self.stream.clone_dtoh(layer).or_say("reading weights")?;
            self.stream.synchronize().or_say("waiting for the stream")?;
            sum += values.iter().map(|&value| f64::from(value).abs()).sum::<f64>();
        }
        Ok(Reading { step_us, peak_bytes, sum })
    }

    fn step<S: Source>(
        &self,
        source: &S,
        weights: &mut [S::Memory],
        batch: usize,
        seed: u32,
    ) -> Result<(), String> {
        let (layers, widths) = (weights.len(), &self.model.widths);
        let mut outs = Vec::with_capacity(layers + 1);
        let mut input = source.alloc(widths[0] * batch)?;
        self.uniform(&mut input, widths[0] * batch, 1000 + seed, 1.0)?;
        outs.push(input);
        for (at, layer) in weights.iter().enumerate() {
            let (width_in, width) = (widths[at], widths[at + 1]);
            let mut sums = source.alloc(width * batch)?;
            self.multiply(
                [CUBLAS_OP_N, CUBLAS_OP_N],
                [width, batch, width_in],
                layer,
                &outs[at],
                &mut sums,
            )?;
            if at + 1 < layers {
                let mut out = source.alloc(width * batch)?;
                self.relu(&sums, &mut out, width * batch)?;
                outs.push(out);
            } else {
                outs.push(sums);
            }
        }
        let width = widths[layers];
        let mut target = source.alloc(width * batch)?;
        self.uniform(&mut target, width * batch, 2000 + seed % 7, 0.5)?;
        let mut grad = source.alloc(width * batch)?;
        self.loss_gradient(&outs[layers], &target, &mut grad, width * batch, 1.0 / batch as f32)?;
        drop(target);
        for at in (0..layers).rev() {
            let (width_in, width) = (widths[at], widths[at + 1]);
            let mut weight_grad = source.alloc(width * width_in)?;
            self.multiply(
                [CUBLAS_OP_N, CUBLAS_OP_T],
                [width, width_in, batch],
                &grad,
                &outs[at],
                &mut weight_grad,
            )?;
            if at > 0 {
                let mut raw = source.alloc(width_in * batch)?;
                self.multiply(
                    [CUBLAS_OP_T, CUBLAS_OP_N],
                    [width_in, batch, width],
                    &weights[at],
                    &grad,
                    &mut raw,
                )?;
                let mut below = source.alloc(width_in * batch)?;
                self.relu_backward(&outs[at], &raw, &mut below, width_in * batch)?;
                grad = below;
            }
            self.descend(&mut weights[at], &weight_grad, width * width_in)?;
            outs.truncate(at + 1);
        }
        Ok(())
    }

    /// The product of two column-major matrices, as many rows and columns as said, summed over the
    /// inner length.
    fn multiply<M: DevicePtr<f32> + DevicePtrMut<f32>>(
        &self,
        [transa, transb]: [cublasOperation_t; 2],
        [rows, columns, inner]: [usize; 3],
        left: &M,
        right: &M,
        product: &mut M,
    ) -> Result<(), String> {
        let [rows, columns, inner] = [rows, columns, inner].map(|length| length as i32);
        let config = GemmConfig {
            transa,
            transb,
            m: rows,
            n: columns,
            k: inner,
            alpha: 1.0,
            lda: if transa == CUBLAS_OP_N { rows } else { inner },
            ldb: if transb == CUBLAS_OP_N { inner } else { columns },
            beta: 0.0,
            ldc: rows,
        };
        // SAFETY: the matrices have these dimensions.
        unsafe { self.blas.gemm(config, left, right, product) }
            .map_err(|error| format!("cuBLAS: {error:?}"))
    }

    fn uniform<M: DevicePtrMut<f32>>(
        &self,
        values: &mut M,
        len: usize,
        seed: u32,
        scale: f32,
    ) -> Result<(), String> {
        let (values, _used) = values.device_ptr_mut(&self.stream);
        let count = len as u64;
        let mut launch = self.stream.launch_builder(&self.kernels.uniform);
        launch.arg(&values).arg(&count).arg(&seed).arg(&scale);
        // SAFETY: the memory has that many values.
        unsafe { launch.launch(grid(len)) }.map(drop).or_say("launching uniform")
    }

    fn relu<M: DevicePtr<f32> + DevicePtrMut<f32>>(
        &self,
        sums: &M,
        out: &mut M,
        len: usize,
    ) -> Result<(), String> {
        let (sums, _read) = sums.device_ptr(&self.stream);
        let (out, _written) = out.device_ptr_mut(&self.stream);
        let count = len as u64;
        let mut launch = self.stream.launch_builder(&self.kernels.relu);
        launch.arg(&sums).arg(&out).arg(&count);
        // SAFETY: both have that many values.
        unsafe { launch.launch(grid(len)) }.map(drop).or_say("launching relu")
    }

    fn relu_backward<M: DevicePtr<f32> + DevicePtrMut<f32>>(
        &self,
        out: &M,
        grad: &M,
        into: &mut M,
        len: usize,
    ) -> Result<(), String> {
        let (out, _read) = out.device_ptr(&self.stream);
        let (grad, _read_too) = grad.device_ptr(&self.stream);
        let (into, _written) = into.device_ptr_mut(&self.stream);
        let count = len as u64;
        let mut launch = self.stream.launch_builder(&self.kernels.relu_backward);
        launch.arg(&out).arg(&grad).arg(&into).arg(&count);
        // SAFETY: all have that many values.
        unsafe { launch.launch(grid(len)) }.map(drop).or_say("launching relu_backward")
    }

    fn loss_gradient<M: DevicePtr<f32> + DevicePtrMut<f32>>(
        &self,
        out: &M,
        target: &M,
        grad: &mut M,
        len: usize,
        scale: f32,
    ) -> Result<(), String> {
        let (out, _read) = out.device_ptr(&self.stream);
        let (target, _read_too) = target.device_ptr(&self.stream);
        let (grad, _written) = grad.device_ptr_mut(&self.stream);
        let count = len as u64;
        let mut launch = self.stream.launch_builder(&self.kernels.loss_gradient);
        launch.arg(&out).arg(&target).arg(&grad).arg(&count).arg(&scale);
        // SAFETY: all have that many values.
        unsafe { launch.launch(grid(len)) }.map(drop).or_say("launching loss_gradient")
    }

    fn descend<M: DevicePtr<f32> + DevicePtrMut<f32>>(
        &self,
        weights: &mut M,
        grad: &M,
        len: usize,
    ) -> Result<(), String> {
        let (grad, _read) = grad.device_ptr(&self.stream);
        let (weights, _written) = weights.device_ptr_mut(&self.stream);
        let (count, rate) = (len as u64, RATE);
        let mut launch = self.stream.launch_builder(&self.kernels.descend);
        launch.arg(&weights).arg(&grad).arg(&count).arg(&rate);
        // SAFETY: both have that many values.
        unsafe { launch.launch(grid(len)) }.map(drop).or_say("launching descend")
    }
}

fn grid(len: usize) -> LaunchConfig {
    let blocks = len.div_ceil(256).min(2048) as u32;
    LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (256, 1, 1), shared_mem_bytes: 0 }
}
