/* The plan of bench/ensembles.py by hand: a training step of many small nets, one net after the other. */
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>

typedef void (*sgemm_t)(char *, char *, int *, int *, int *, float *, float *, int *, float *, int *, float *, float *,
                        int *);

enum { MOST_LAYERS = 4 };

typedef struct {
    sgemm_t sgemm;
    int layers;                   /* products of the net */
    int sizes[MOST_LAYERS + 1];   /* lengths of the layers, the input first */
    int batch, parameters;
    const float *images;          /* rows of the data */
    const int64_t *labels, *rows; /* a label for each row; rows of each net's batch */
    float *flat, *mean, *square;  /* parameters and averages of all nets */
    float step, epsilon;          /* rate * sqrt(1 - b2^t) / (1 - b1^t), and epsilon * sqrt(1 - b2^t) */
    int first, last;              /* nets of this thread */
    float *workspace;             /* of this thread */
} plan_t;

static void product(sgemm_t sgemm, char a, char b, int m, int n, int k, float *x, int lx, float *y, int ly, float *out)
{
    float one = 1.0f, zero = 0.0f;
    sgemm(&a, &b, &m, &n, &k, &one, x, &lx, y, &ly, &zero, out, &m);
}

static void forward(const plan_t *p, const float *w, float **h)
{
    for (int l = 0; l < p->layers; l++) {
        int in = p->sizes[l], out = p->sizes[l + 1];
        const float *bias = w + in * out;
        float *x = h[l + 1];
        product(p->sgemm, 'N', 'N', out, p->batch, in, (float *)w, out, h[l], in, x);
        for (int i = 0; i < p->batch; i++)
            for (int j = 0; j < out; j++) {
                float value = x[i * out + j] + bias[j];
                x[i * out + j] = l + 1 < p->layers ? fmaxf(value, 0.0f) : value;
            }
        w += in * out + out;
    }
}

static void cross_entropy(const plan_t *p, const int64_t *rows, float *x)
{
    int n = p->sizes[p->layers];
    for (int i = 0; i < p->batch; i++, x += n) {
        float top = x[0], total = 0.0f;
        for (int j = 1; j < n; j++) top = fmaxf(top, x[j]);
        for (int j = 0; j < n; j++) { x[j] = expf(x[j] - top); total += x[j]; }
        float scale = 1.0f / (total * p->batch);
        for (int j = 0; j < n; j++) x[j] *= scale;
        x[p->labels[rows[i]]] -= 1.0f / p->batch;
    }
}

static void backward(const plan_t *p, const float *flat, float *gradient, float **h, float *d, float *other)
{
    int offset = p->parameters;
    for (int l = p->layers - 1; l >= 0; l--) {
        int in = p->sizes[l], out = p->sizes[l + 1];
        offset -= in * out + out;
        product(p->sgemm, 'N', 'T', out, in, p->batch, d, out, h[l], in, gradient + offset);
        float *bias = gradient + offset + in * out;
        memset(bias, 0, out * sizeof(float));
        for (int i = 0; i < p->batch; i++)
            for (int j = 0; j < out; j++) bias[j] += d[i * out + j];
        if (l == 0) break;
        product(p->sgemm, 'T', 'N', in, p->batch, out, (float *)flat + offset, out, d, out, other);
        for (int k = 0; k < p->batch * in; k++) other[k] = h[l][k] > 0.0f ? other[k] : 0.0f;
        float *swap = d; d = other; other = swap;
    }
}

static void adam(const plan_t *p, float *x, float *m, float *v, const float *g)
{
    for (int k = 0; k < p->parameters; k++) {
        m[k] = 0.9f * m[k] + 0.1f * g[k];
        v[k] = 0.999f * v[k] + 0.001f * g[k] * g[k];
        x[k] -= p->step * m[k] / (sqrtf(v[k]) + p->epsilon);
    }
}

static void *run(void *argument)
{
    const plan_t *p = argument;
    float *h[MOST_LAYERS + 1], *next = p->workspace;
    int widest = 0;
    for (int l = 0; l <= p->layers; l++) {
        h[l] = next;
        next += p->batch * p->sizes[l];
        if (l && p->sizes[l] > widest) widest = p->sizes[l];
    }
    float *other = next, *spare = other + p->batch * widest, *gradient = spare + p->batch * widest;
    for (int net = p->first; net < p->last; net++) {
        const int64_t *rows = p->rows + (int64_t)net * p->batch;
        int64_t start = (int64_t)net * p->parameters;
        for (int i = 0; i < p->batch; i++)
            memcpy(h[0] + i * p->sizes[0], p->images + rows[i] * p->sizes[0], p->sizes[0] * sizeof(float));
        forward(p, p->flat + start, h);
        cross_entropy(p, rows, h[p->layers]);
        memcpy(spare, h[p->layers], p->batch * p->sizes[p->layers] * sizeof(float));
        backward(p, p->flat + start, gradient, h, spare, other);
        adam(p, p->flat + start, p->mean + start, p->square + start, gradient);
    }
    return 0;
}

/* Do a step of all nets with the plans of one or two threads. */
void step(plan_t *plans, int threads)
{
    pthread_t second;
    int started = threads > 1 && pthread_create(&second, 0, run, plans + 1) == 0;
    run(plans);
    if (started) pthread_join(second, 0);
    else if (threads > 1) run(plans + 1);
}
