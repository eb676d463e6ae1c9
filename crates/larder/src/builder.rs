//! The builder: settings and hooks first, then the GPU.

use std::sync::Arc;

use larder_core::allocator::default_config;
use larder_core::config::Backend as Choice;
use larder_core::{Config, OutOfMemory, Policy};
#[cfg(feature = "cuda")]
use larder_cuda::{AsyncPool, CudaDevice, CudaOptions};
#[cfg(feature = "sim")]
use larder_sim::{SimDevice, SimOptions};

use crate::allocator::{Allocator, Backend, Gpu};
use crate::error::Error;
#[cfg(feature = "cuda")]
use crate::real::gpu::RealGpu;

type MissCallback = Box<dyn Fn() -> bool + Send + Sync>;
type OutOfMemoryObserver = Box<dyn Fn(&OutOfMemory) + Send + Sync>;

/// What an allocator shall be like. [`Allocator::builder`] begins one; [`Builder::cuda`] and
/// [`Builder::simulated`] end it.
///
/// ```
/// use larder::Allocator;
///
/// let allocator = Allocator::builder()
///     .settings("expandable_segments:True,garbage_collection_threshold:0.8")?
///     .memory_fraction(0.5)
///     .on_out_of_memory(|report| eprintln!("{report}"))
///     .simulated(0)?;
/// assert!(allocator.config().expandable_segments);
/// # Ok::<(), larder::Error>(())
/// ```
#[must_use]
#[derive(Default)]
pub struct Builder {
    /// The settings that were given; none where those of the policy shall do.
    config: Option<Config>,
    policy: Policy,
    memory_fraction: Option<f64>,
    #[cfg(feature = "cuda")]
    cuda_options: CudaOptions,
    miss_callbacks: Vec<MissCallback>,
    observers: Vec<OutOfMemoryObserver>,
}

impl Allocator {
    /// An allocator for the GPU of this index, with default settings. A machine with no CUDA gives
    /// one clear error.
    ///
    /// ```no_run
    /// let allocator = larder::Allocator::cuda(0)?;
    /// println!("{} bytes are free", allocator.memory_info()?.free_bytes);
    /// # Ok::<(), larder::Error>(())
    /// ```
    #[cfg(feature = "cuda")]
    pub fn cuda(index: u32) -> Result<Allocator, Error> {
        Allocator::builder().cuda(index)
    }

    /// An allocator for a simulated GPU with 80 GiB, with default settings.
    #[cfg(feature = "sim")]
    pub fn simulated(index: u32) -> Result<Allocator, Error> {
        Allocator::builder().simulated(index)
    }

    /// Begins an allocator with settings and hooks.
    pub fn builder() -> Builder {
        Builder::default()
    }
}

impl Builder {
    /// Reads settings in the form of `PYTORCH_CUDA_ALLOC_CONF`, on top of those so far. If there
    /// are any, what none of them names is as in PyTorch.
    pub fn settings(mut self, text: &str) -> Result<Builder, Error> {
        if !text.trim().is_empty() {
            self.config = Some(self.config.unwrap_or_default().begin(text)?);
        }
        Ok(self)
    }

    /// Takes settings as they are. Where none are given at all, they are those of the policy: with
    /// `larder`, expandable segments on every GPU that has virtual memory.
    pub fn config(mut self, config: Config) -> Builder {
        self.config = Some(config);
        self
    }

    /// Decides as this policy does; without it, as `larder` does.
    pub fn policy(mut self, policy: Policy) -> Builder {
        self.policy = policy;
        self
    }

    /// Caps what may be held at this part of the GPU's memory, from 0 to 1.
    pub fn memory_fraction(mut self, fraction: f64) -> Builder {
        self.memory_fraction = Some(fraction);
        self
    }

    /// What can be chosen about a real GPU.
    #[cfg(feature = "cuda")]
    pub fn cuda_options(mut self, options: CudaOptions) -> Builder {
        self.cuda_options = options;
        self
    }

    /// Calls this whenever no cached block fits; it says whether it freed anything.
    pub fn on_miss(mut self, callback: impl Fn() -> bool + Send + Sync + 'static) -> Builder {
        self.miss_callbacks.push(Box::new(callback));
        self
    }

    /// Tells this of every request that could not be met, before the error goes out.
    pub fn on_out_of_memory(
        mut self,
        observer: impl Fn(&OutOfMemory) + Send + Sync + 'static,
    ) -> Builder {
        self.observers.push(Box::new(observer));
        self
    }

    /// An allocator for the GPU of this index. A machine with no CUDA gives one clear error.
    #[cfg(feature = "cuda")]
    pub fn cuda(self, index: u32) -> Result<Allocator, Error> {
        let device = Arc::new(CudaDevice::new(index, self.cuda_options)?);
        self.cuda_device(device)
    }

    /// An allocator for a GPU that is open already.
    #[cfg(feature = "cuda")]
    pub fn cuda_device(mut self, device: Arc<CudaDevice>) -> Result<Allocator, Error> {
        let config = self.settled_config();
        let backend = match config.backend {
            Choice::Native => self.native(Arc::clone(&device) as _, config),
            Choice::CudaMallocAsync => {
                let pool = AsyncPool::new(Arc::clone(&device))?;
                pool.set_memory_fraction(config.memory_fraction)?;
                for observer in self.observers.drain(..) {
                    pool.on_out_of_memory(observer);
                }
                Backend::Async(pool)
            }
        };
        self.finish(backend, Gpu::Cuda(RealGpu::new(device)))
    }

    /// An allocator for a simulated GPU of this index, with 80 GiB.
    #[cfg(feature = "sim")]
    pub fn simulated(self, index: u32) -> Result<Allocator, Error> {
        self.simulated_with(SimOptions::default().index(index))
    }

    /// An allocator for a simulated GPU of any kind.
    #[cfg(feature = "sim")]
    pub fn simulated_with(self, options: SimOptions) -> Result<Allocator, Error> {
        self.simulated_device(Arc::new(SimDevice::new(options)))
    }

    /// An allocator for a simulated GPU that there is already.
    #[cfg(feature = "sim")]
    pub fn simulated_device(mut self, device: Arc<SimDevice>) -> Result<Allocator, Error> {
        let config = self.settled_config();
        if config.backend == Choice::CudaMallocAsync {
            return Err(Error::AsyncSimulated);
        }
        let backend = self.native(Arc::clone(&device) as _, config);
        self.finish(backend, Gpu::Simulated(device))
    }

    /// The settings that were given, or else those of the policy.
    fn settled_config(&mut self) -> Config {
        self.config.take().unwrap_or_else(|| default_config(&self.policy))
    }

    /// Our own allocator over a device, with the hooks.
    fn native(&mut self, device: Arc<dyn larder_core::device::Device>, config: Config) -> Backend {
        let allocator = larder_core::Allocator::new(device, config, self.policy.clone());
        for callback in self.miss_callbacks.drain(..) {
            allocator.on_miss(callback);
        }
        for observer in self.observers.drain(..) {
            allocator.on_out_of_memory(observer);
        }
        Backend::Native(Arc::new(allocator))
    }

    fn finish(self, backend: Backend, gpu: Gpu) -> Result<Allocator, Error> {
        let allocator = Allocator::assemble(backend, gpu);
        if let Some(fraction) = self.memory_fraction {
            allocator.set_memory_fraction(fraction)?;
        }
        Ok(allocator)
    }
}
