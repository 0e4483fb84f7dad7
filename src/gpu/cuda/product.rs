//! Products as calls of cuBLASLt.

use std::ffi::c_void;
use std::mem::size_of;

use candle_core::cuda_backend::cudarc::cublaslt::{result as lt, sys as lts};

use super::{Cuda, locked};
use crate::gpu::queue::{Address, ColumnMajor, Epilogue, Number, Product};

/// Scratch that products may use: what NVIDIA recommends for its newest GPUs.
pub(super) const WORKSPACE: usize = 64 << 20;

/// What cuBLASLt's choice of an algorithm depends on.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    sizes: [usize; 3],
    strides: [usize; 3],
    transposed: [bool; 2],
    /// Bytes that A, B and C are aligned to.
    alignments: [u32; 3],
    bf16: [bool; 2],
    accumulate: bool,
    epilogue: u8,
    /// Bytes that the epilogue's bias is aligned to; cuBLASLt looks at its address.
    bias: u32,
}

impl Shape {
    pub(super) fn new(p: &Product) -> Self {
        let (epilogue, bias) = match p.epilogue {
            Epilogue::None => (0, 0),
            Epilogue::Bias(bias) => (1, alignment(bias)),
            Epilogue::BiasRelu(bias) => (2, alignment(bias)),
        };
        Self {
            sizes: [p.m, p.n, p.k],
            strides: [p.a.stride, p.b.stride, p.c.stride],
            transposed: [p.a.transposed, p.b.transposed],
            alignments: [p.a.at, p.b.at, p.c.at].map(alignment),
            bf16: [p.number == Number::Bf16, p.result == Number::Bf16],
            accumulate: p.accumulate,
            epilogue,
            bias,
        }
    }
}

/// The product whose algorithm is used for this one. Batches differ in their rows, so numbers of rows are rounded. The
/// choice does not depend on which batch came first, so that a resumed run gives the same results as an uninterrupted
/// one.
pub(super) fn typical(p: &Product) -> Product {
    let rounded = |n: usize| n.next_multiple_of(if n > 1024 { 512 } else { 64 });
    // Weight gradients sum over the rows of a batch; other products have them as rows of the result.
    let (m, k) = if p.a.transposed { (p.m, rounded(p.k)) } else { (rounded(p.m), p.k) };
    Product { m, k, ..*p }
}

/// The largest power of two, up to 256, that an address is a multiple of: cuBLASLt's kernels need no more.
pub(super) fn alignment(address: Address) -> u32 {
    1 << address.number().trailing_zeros().min(8)
}

/// The descriptors of one product, column-major.
pub(super) struct Call<'a> {
    product: &'a Product,
    operation: lts::cublasLtMatmulDesc_t,
    left: lts::cublasLtMatrixLayout_t,
    right: lts::cublasLtMatrixLayout_t,
    result: lts::cublasLtMatrixLayout_t,
}

pub(super) type LtResult<T> = std::result::Result<T, lt::CublasError>;

fn data_type(number: Number) -> lts::cudaDataType {
    match number {
        Number::F32 => lts::cudaDataType::CUDA_R_32F,
        Number::Bf16 => lts::cudaDataType::CUDA_R_16BF,
    }
}

/// The descriptor of a column-major matrix.
fn layout((rows, columns): (usize, usize), ld: usize, number: Number) -> LtResult<lts::cublasLtMatrixLayout_t> {
    lt::create_matrix_layout(data_type(number), rows as u64, columns as u64, ld as i64)
}

impl<'a> Call<'a> {
    pub(super) fn new(product: &'a Product) -> LtResult<Self> {
        use lts::cublasLtMatmulDescAttributes_t as attribute;
        let Product { a, b, c, number, result, .. } = *product;
        let ColumnMajor { sizes: [rows, columns, _], left, right } = product.column_major();
        let call = Self {
            product,
            operation: lt::create_matmul_desc(lts::cublasComputeType_t::CUBLAS_COMPUTE_32F, data_type(Number::F32))?,
            left: layout((left.0, left.1), b.stride, number)?,
            right: layout((right.0, right.1), a.stride, number)?,
            result: layout((rows, columns), c.stride, result)?,
        };
        // In cuBLAS: 0 as it is, 1 transposed.
        call.set(attribute::CUBLASLT_MATMUL_DESC_TRANSA, &u32::from(left.2))?;
        call.set(attribute::CUBLASLT_MATMUL_DESC_TRANSB, &u32::from(right.2))?;
        let (epilogue, bias) = match product.epilogue {
            Epilogue::None => return Ok(call),
            Epilogue::Bias(bias) => (lts::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS, bias),
            Epilogue::BiasRelu(bias) => (lts::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_RELU_BIAS, bias),
        };
        call.set(attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
        call.set(attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias.number())?;
        Ok(call)
    }

    fn set<T>(&self, attribute: lts::cublasLtMatmulDescAttributes_t, value: &T) -> LtResult<()> {
        // SAFETY: the description lives, and the value has the attribute's size.
        unsafe { lt::set_matmul_desc_attribute(self.operation, attribute, (&raw const *value).cast(), size_of::<T>()) }
    }

    /// The algorithm that cuBLASLt expects to be the fastest.
    pub(super) fn choose(&self, handle: lts::cublasLtHandle_t) -> LtResult<lts::cublasLtMatmulAlgo_t> {
        use lts::cublasLtMatmulPreferenceAttributes_t as attribute;
        let preference = Preference(lt::create_matmul_pref()?);
        preference.set(attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE)?;
        // Partial sums are added up in the workspace in float32, never in the result in its own type.
        let in_float32 = lts::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        preference.set(attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &in_float32)?;
        // By default it expects a larger alignment than parameters in the middle of a flat tensor have.
        let [a, b, c] = [self.product.a.at, self.product.b.at, self.product.c.at].map(alignment);
        preference.set(attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &b)?;
        preference.set(attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &a)?;
        preference.set(attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &c)?;
        preference.set(attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &c)?;
        let (operation, result) = (self.operation, self.result);
        // SAFETY: all of them live.
        let found = unsafe {
            lt::get_matmul_algo_heuristic(handle, operation, self.left, self.right, result, result, preference.0)
        };
        Ok(found?.algo)
    }

    pub(super) fn run(&self, cuda: &Cuda, algorithm: &lts::cublasLtMatmulAlgo_t) -> LtResult<()> {
        let workspace = locked(&cuda.workspace);
        let (p, one, beta) = (self.product, 1f32, if self.product.accumulate { 1f32 } else { 0f32 });
        // SAFETY: the caller's matrices lie in the device's memory.
        unsafe {
            lt::matmul(
                cuda.lt,
                self.operation,
                (&raw const one).cast(),
                (&raw const beta).cast(),
                p.b.at.number() as *const c_void,
                self.left,
                p.a.at.number() as *const c_void,
                self.right,
                p.c.at.number() as *const c_void,
                self.result,
                p.c.at.number() as *mut c_void,
                self.result,
                algorithm,
                workspace.number() as *mut c_void,
                WORKSPACE,
                cuda.stream.cu_stream().cast(),
            )
        }
    }
}

/// What an algorithm may take for granted.
struct Preference(lts::cublasLtMatmulPreference_t);

impl Preference {
    fn set<T>(&self, attribute: lts::cublasLtMatmulPreferenceAttributes_t, value: &T) -> LtResult<()> {
        // SAFETY: the preference lives, and the value has the attribute's size.
        unsafe { lt::set_matmul_pref_attribute(self.0, attribute, (&raw const *value).cast(), size_of::<T>()) }
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: it is not used again.
        let _ = unsafe { lt::destroy_matmul_pref(self.0) };
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        // SAFETY: they are not used again; cuBLASLt has taken from them what it needs.
        unsafe {
            let _ = lt::destroy_matmul_desc(self.operation);
            for layout in [self.left, self.right, self.result] {
                let _ = lt::destroy_matrix_layout(layout);
            }
        }
    }
}
