"""Sparse products of tensors: values, derivatives on the patterns, transformations."""

import numpy as np
import pytest
import scipy.sparse as sp

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import spectile.torch as ours  # noqa: E402


def csr(m, n, seed, dtype=torch.float64):
    matrix = sp.random(m, n, 0.4, format="csr", random_state=np.random.default_rng(seed))
    matrix.sort_indices()
    indices = (torch.tensor(x, dtype=torch.int64) for x in (matrix.indptr, matrix.indices))
    return torch.sparse_csr_tensor(*indices, torch.tensor(matrix.data, dtype=dtype), matrix.shape)


def test_product_and_gradients_are_those_of_dense_matrices_on_the_patterns():
    a, b = csr(7, 5, 0).requires_grad_(), csr(5, 9, 1).requires_grad_()
    dense = [x.detach().to_dense().requires_grad_() for x in (a, b)]
    weights = torch.randn(7, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for left, right, product in ((a, b, ours.spgemm(a, b).to_dense()), (*dense, dense[0] @ dense[1])):
        (product**2 * weights).sum().backward()
        assert left.grad is not None and right.grad is not None
    for sparse, full in zip((a, b), dense, strict=True):
        wanted = torch.where(sparse.detach().to_dense() != 0, full.grad, 0.0)
        assert torch.allclose(sparse.grad.to_dense(), wanted, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("shape", [(6, 5, 7), (1, 8, 1), (4, 1, 5)])
def test_orders_and_modes(shape):
    m, k, n = shape
    A, B = csr(m, k, 2), csr(k, n, 3)
    product = ours.symbolic(A, B)
    entries = [x.values().clone().requires_grad_() for x in (A, B)]
    assert torch.autograd.gradcheck(product.numeric, entries, check_forward_ad=True, atol=1e-6, rtol=1e-6)
    assert torch.autograd.gradgradcheck(product.numeric, entries, check_fwd_over_rev=True, atol=1e-6, rtol=1e-6)


def test_complex_entries_have_the_gradients_of_pytorch():
    A, B = csr(5, 4, 9), csr(4, 6, 10)
    product = ours.symbolic(A, B)
    entries = [torch.polar(x.values(), 7 * x.values()).requires_grad_() for x in (A, B)]
    assert torch.autograd.gradcheck(product.numeric, entries, check_forward_ad=True, atol=1e-6, rtol=1e-6)
    assert torch.autograd.gradgradcheck(product.numeric, entries, atol=1e-6, rtol=1e-6)
    sparse = [
        torch.sparse_csr_tensor(x.crow_indices(), x.col_indices(), e.detach(), x.shape)
        for x, e in zip((A, B), entries, strict=True)
    ]
    dense = [x.to_dense().requires_grad_() for x in sparse]
    assert torch.allclose(ours.spgemm(*sparse).to_dense(), dense[0] @ dense[1])
    with pytest.raises(TypeError, match="take the entries apart"):
        ours.spgemm(sparse[0].requires_grad_(), sparse[1])
    for found in (product.numeric(*entries), dense[0] @ dense[1]):
        (found.abs() ** 2).sum().backward()
    for one, full in zip(sparse, dense, strict=True):
        rows = torch.repeat_interleave(torch.arange(one.shape[0]), one.crow_indices().diff())
        wanted = full.grad[rows, one.col_indices()]
        assert torch.allclose(entries.pop(0).grad, wanted, rtol=1e-12, atol=1e-13)


def test_vmap_and_the_hessian_of_entries():
    A, B = csr(4, 4, 4), csr(4, 4, 5)
    product, a, b = ours.symbolic(A, B), A.values(), B.values()
    both = torch.func.vmap(product.numeric, in_dims=(0, None))(torch.stack([a, 2 * a]), b)
    assert torch.allclose(both, torch.stack([product.numeric(a, b), 2 * product.numeric(a, b)]))
    jacobian = torch.func.jacrev(product.numeric)(a, b)
    found = torch.func.hessian(lambda a: (product.numeric(a, b) ** 2).sum())(a)
    assert torch.allclose(found, 2 * jacobian.mT @ jacobian)


@pytest.mark.parametrize("on_gpu", [(0,), (1,), (0, 1)])
def test_entries_on_a_gpu_are_refused_wherever_they_stand(on_gpu):
    matrix = csr(4, 4, 7)
    product, entries = ours.symbolic(matrix, matrix), [matrix.values(), matrix.values()]
    with FakeTensorMode():
        for place in on_gpu:
            entries[place] = torch.empty(entries[place].shape, dtype=torch.float64, device="cuda:0")
    with pytest.raises(TypeError, match="on the host"):
        product.numeric(*entries)


def test_wrong_input_gets_one_sentence():
    a = csr(3, 4, 6)
    with pytest.raises(TypeError, match="to_sparse_csr"):
        ours.spgemm(a.to_dense(), a)
    with pytest.raises(ValueError, match="cannot be multiplied"):
        ours.spgemm(a, a)
    square = csr(4, 4, 7)
    with pytest.raises(TypeError, match="of one type"):
        ours.spgemm(a.to(torch.complex128), square)
    with pytest.raises(TypeError, match="float32"):
        ours.spgemm(a, square.to(torch.float32))
    with pytest.raises(ValueError, match="entries"):
        ours.symbolic(a, square).numeric(a.values()[:1], square.values())
    unsorted = torch.sparse_csr_tensor([0, 2], [1, 0], [1.0, 2.0], (1, 2), check_invariants=False)
    with pytest.raises(ValueError, match="not sorted"):
        ours.spgemm(unsorted, csr(2, 2, 8, torch.float32))


@pytest.mark.filterwarnings("ignore:Dynamo:UserWarning")
def test_products_within_what_is_compiled():
    matrix = csr(6, 6, 11)
    product, entries = ours.symbolic(matrix, matrix), [matrix.values().clone().requires_grad_() for _ in range(3)]

    def cost(values):
        return (product.numeric(values, values) ** 2).sum()

    wanted = cost(entries[0])
    wanted.backward()
    for values, backend in zip(entries[1:], ("eager", "aot_eager"), strict=True):
        found = torch.compile(cost, backend=backend, fullgraph=True)(values)
        found.backward()
        assert torch.allclose(found, wanted) and torch.allclose(values.grad, entries[0].grad)
    several = torch.stack([entries[0].detach(), 2 * entries[0].detach()])
    mapped = torch.compile(torch.func.vmap(lambda x: product.numeric(x, x)), backend="aot_eager", fullgraph=True)
    assert torch.allclose(mapped(several), torch.stack([product.numeric(x, x) for x in several]))
    whole = torch.compile(lambda A: ours.spgemm(A, A).to_dense(), backend="eager")(matrix)
    assert torch.allclose(whole, matrix.to_dense() @ matrix.to_dense())
    with pytest.raises(torch._dynamo.exc.Unsupported, match="call symbolic outside of"):
        torch.compile(lambda A: ours.symbolic(A, A), backend="eager", fullgraph=True)(matrix)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_entries_of_half_precision_are_multiplied_in_single(dtype):
    matrix = csr(6, 6, 12)
    half = torch.sparse_csr_tensor(matrix.crow_indices(), matrix.col_indices(), matrix.values().to(dtype), (6, 6))
    found, dense = ours.spgemm(half, half), half.to_dense().float()
    assert found.dtype == torch.float32 and torch.allclose(found.to_dense(), dense @ dense)
    product, values, single = ours.symbolic(half, half), half.values().clone(), half.values().float()
    for entries in (values, single):
        product.numeric(entries.requires_grad_(), entries).sum().backward()
    assert values.grad.dtype == dtype
    assert torch.allclose(values.grad.float(), single.grad, rtol=2 * torch.finfo(dtype).eps)  # of two terms
    with pytest.raises(TypeError, match="a is no dense tensor of PyTorch"):
        ours.symbolic(half, half).numeric(np.ones(3), half.values())


def test_a_derivative_is_there_after_many_other_patterns():
    matrix = csr(5, 5, 13).requires_grad_()
    cost = ours.spgemm(matrix, matrix).to_dense().sum()
    for size in range(1, 20):
        ours.spgemm(csr(size, size, size), csr(size, size, size))
    cost.backward()
    assert matrix.grad is not None


def test_a_product_warns_of_nothing(recwarn):
    a, before = csr(5, 5, 11).requires_grad_(), torch.is_warn_always_enabled()
    recwarn.clear()
    torch.set_warn_always(True)
    try:
        product = ours.spgemm(a, a)
    finally:
        torch.set_warn_always(before)
    assert not [each for each in recwarn if "invariant" in str(each.message)]
    product.to_dense().sum().backward()
    assert a.grad is not None
