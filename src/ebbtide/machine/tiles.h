/*
A product of two matrices, for one type: included by products.h for each, with REAL, VECTOR, LANES, NARROW and the names
of what the processor does with a vector.

A tile of the result is summed in registers: ROWS rows of VECTORS vectors, of which the second may lie over the first
where columns are left over; what both compute is the same.
*/
#define TILE static inline __attribute__((always_inline, target("avx2,fma"))) void

/*
What is done with a product of as many columns as a vector has, or more: a row is added to each of its rows, and then
what is less than a number is that number. Done where the elements are still in registers, it takes half of the time that
it takes as a chain of its own.
*/
typedef struct {
    int kind;
    const REAL *added;
    REAL least;
} NAME(end);

/* NaN stays, of equal ones it is the number: as NumPy's maximum. */
static inline __attribute__((always_inline, target("avx2,fma"))) VECTOR NAME(ended)(
    const NAME(end) *end, VECTOR x, const REAL *added) {
    x = ADD(x, LOAD(added));
    if (end->kind == EBBTIDE_ADD) return x;
    const VECTOR least = SET(end->least);
    return CHOOSE(least, x, EITHER(COMPARE(x, least, _CMP_GT_OQ), COMPARE(x, x, _CMP_UNORD_Q)));
}

/* Add a piece of the sums of one tile, from 0 where the piece is the first one; end: where it is the last one. */
TILE NAME(tile)(const int rows, const int vectors, const long piece, const int is_first, const REAL *a, const long a_row,
                const long a_column, const REAL *b, const long b_row, REAL *c, const long c_row, const long second,
                const int columns, const NAME(end) *end, const REAL *added) {
    VECTOR sum[8][2], right[2];
    REAL rest[LANES];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 2
        for (int j = 0; j < vectors; j++) {
            sum[i][j] = ZERO();
            if (!is_first && columns == LANES) sum[i][j] = LOAD(c + i * c_row + j * second);
        }
        if (!is_first && columns < LANES) {
            for (int lane = 0; lane < LANES; lane++) rest[lane] = c[i * c_row + (lane < columns ? lane : columns - 1)];
            sum[i][0] = LOAD(rest);
        }
    }
    for (long p = 0; p < piece; p++) {
#pragma GCC unroll 2
        for (int j = 0; j < vectors; j++) right[j] = LOAD(b + p * b_row + j * second);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            const VECTOR left = SPREAD(a + i * a_row + p * a_column);
#pragma GCC unroll 2
            for (int j = 0; j < vectors; j++) sum[i][j] = MULTIPLY_ADD(left, right[j], sum[i][j]);
        }
    }
    if (end)
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
            for (int j = 0; j < vectors; j++) sum[i][j] = NAME(ended)(end, sum[i][j], added + j * second);
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
        if (columns < LANES) {
            STORE(rest, sum[i][0]);
            for (int lane = 0; lane < columns; lane++) c[i * c_row + lane] = rest[lane];
            continue;
        }
#pragma GCC unroll 2
        for (int j = 0; j < vectors; j++) STORE(c + i * c_row + j * second, sum[i][j]);
    }
}

#define ROWS(count, vectors)                                                                                           \
    NAME(tile)(count, vectors, piece, is_first, a + i * a_row, a_row, a_column, b, b_row, c + i * c_row, c_row, second, \
               columns, end, added)

/* Add a piece of the sums of all rows in one or two vectors of columns. */
TILE NAME(panel)(const long rows, const int vectors, const long piece, const int is_first, const REAL *a,
                 const long a_row, const long a_column, const REAL *b, const long b_row, REAL *c, const long c_row,
                 const long second, const int columns, const NAME(end) *end, const REAL *added) {
    long i = 0;
    /* Eight sums at a time or more: the processor begins two in each cycle, and each takes four. Twelve take 0.9 of the
       time of eight, which wait for each other wherever something else comes between. */
    if (vectors == 1)
        for (; i + 8 <= rows; i += 8) ROWS(8, 1);
    else
        for (; i + 6 <= rows && i + 8 != rows; i += 6) ROWS(6, vectors);
    for (; i + 4 <= rows; i += 4) ROWS(4, vectors);
    switch (rows - i) {
    case 3: ROWS(3, vectors); break;
    case 2: ROWS(2, vectors); break;
    case 1: ROWS(1, vectors); break;
    }
}

/* Copy a vector of columns of a piece to where its rows are next to each other; the last column fills what is left. */
TILE NAME(pack)(const long piece, const int columns, const REAL *b, const long b_row, const long b_column, REAL *room,
                const long room_row) {
    long p = 0;
    if (b_row == 1) {
        const REAL *each[LANES];
        for (int j = 0; j < LANES; j++) each[j] = b + (j < columns ? j : columns - 1) * b_column;
        for (; p + LANES <= piece; p += LANES) NAME(turn)(each, p, room + p * room_row, room_row);
    } else if (b_column == 1 && columns == LANES) {
        for (; p < piece; p++) STORE(room + p * room_row, LOAD(b + p * b_row));
    } else if (b_column == 1 && columns < LANES && b_row + columns >= LANES) {
        /* A vector reaches into the next row, and the last row has none. */
        for (; p + 1 < piece; p++) STORE(room + p * room_row, LAST_FILLS(LOAD(b + p * b_row), columns));
    }
    for (; p < piece; p++)
        for (int j = 0; j < LANES; j++) room[p * room_row + j] = b[p * b_row + (j < columns ? j : columns - 1) * b_column];
}

/* Add a piece of the sums of few columns for one or two vectors of rows, which lie next to each other. */
TILE NAME(strip)(const int vectors, const int columns, const long piece, const REAL *a, const long a_column,
                 const REAL *b, const long b_row, const long b_column, VECTOR (*sums)[2]) {
    VECTOR sum[6][2], left[2];
#pragma GCC unroll 6
    for (int j = 0; j < columns; j++)
#pragma GCC unroll 2
        for (int i = 0; i < vectors; i++) sum[j][i] = sums[j][i];
    for (long p = 0; p < piece; p++) {
#pragma GCC unroll 2
        for (int i = 0; i < vectors; i++) left[i] = LOAD(a + p * a_column + i * LANES);
#pragma GCC unroll 6
        for (int j = 0; j < columns; j++) {
            const VECTOR right = SPREAD(b + p * b_row + j * b_column);
#pragma GCC unroll 2
            for (int i = 0; i < vectors; i++) sum[j][i] = MULTIPLY_ADD(left[i], right, sum[j][i]);
        }
    }
#pragma GCC unroll 6
    for (int j = 0; j < columns; j++)
#pragma GCC unroll 2
        for (int i = 0; i < vectors; i++) sums[j][i] = sum[j][i];
}

#define STRIP(count)                                                                                                   \
    case count:                                                                                                        \
        if (vectors == 2)                                                                                              \
            NAME(strip)(2, count, piece, a, a_column, b, b_row, b_column, sums);                                       \
        else                                                                                                           \
            NAME(strip)(1, count, piece, a, a_column, b, b_row, b_column, sums);                                       \
        break;

/* The same for as many columns as there are. */
TILE NAME(strips)(const int vectors, const int columns, const long piece, const REAL *a, const long a_column,
                  const REAL *b, const long b_row, const long b_column, VECTOR (*sums)[2]) {
    switch (columns) { STRIP(1) STRIP(2) STRIP(3) STRIP(4) STRIP(5) STRIP(6) }
}

/* Write a vector of rows, of which each column is given; the next row is written over what goes beyond a row. */
TILE NAME(unturn)(VECTOR (*sums)[2], const int vector, const int columns, REAL *c, const long c_row, const int is_last) {
    REAL given[LANES * LANES], turned[LANES * LANES];
    const REAL *each[LANES];
    for (int j = 0; j < LANES; j++) {
        each[j] = given + (j < columns ? j : columns - 1) * LANES;
        if (j < columns) STORE(given + j * LANES, sums[j][vector]);
    }
    NAME(turn)(each, 0, turned, LANES);
    const int reaching = c_row == columns && 2 * columns >= LANES ? LANES - is_last : 0;
    for (int i = 0; i < reaching; i++) STORE(c + i * c_row, LOAD(turned + i * LANES));
    for (int i = reaching; i < LANES; i++)
        for (int j = 0; j < columns; j++) c[i * c_row + j] = turned[i * LANES + j];
}

/* Fewer columns than a vector has: rows side by side, each column as a number for all of them. 784 x 32 x 6 takes 0.6 of
   the time of rows one after the other, 32 x 784 x 6, whose rows have to be turned, 0.7. */
__attribute__((target("avx2,fma"))) static void NAME(narrow)(
    const long rows, const long inner, const int all, const REAL *a, const long a_row, const long a_column,
    const REAL *b, const long b_row, const long b_column, REAL *c, const long c_row) {
    REAL room[2 * LANES * PIECE];
    VECTOR sums[LANES][2];
    const int few = all > 6 ? 4 : all;
    for (long start = 0; start < rows;) {
        const int vectors = rows - start >= 2 * LANES ? 2 : 1;
        /* Rows that are left over are computed with some before them. */
        const long i = rows - start < LANES ? rows - LANES : start;
        for (int j = 0; j < all; j++) sums[j][0] = sums[j][1] = ZERO();
        for (long p = 0; p < inner; p += PIECE) {
            const long piece = inner - p < PIECE ? inner - p : PIECE;
            const REAL *left = a + i * a_row + p * a_column, *right = b + p * b_row;
            long left_column = a_column;
            if (a_row != 1) {
                for (int k = 0; k < vectors; k++)
                    NAME(pack)(piece, LANES, left + k * LANES * a_row, a_column, a_row, room + k * LANES, 2 * LANES);
                left = room, left_column = 2 * LANES;
            }
            NAME(strips)(vectors, few, piece, left, left_column, right, b_row, b_column, sums);
            if (few < all)
                NAME(strips)(vectors, all - few, piece, left, left_column, right + few * b_column, b_row, b_column, sums + few);
        }
        for (int k = 0; k < vectors; k++)
            NAME(unturn)(sums, k, all, c + (i + k * LANES) * c_row, c_row, i + (k + 1) * LANES == rows);
        start = i + vectors * LANES;
    }
}

/* c = a b, each sum in the order of its terms; strides are numbers of elements, and a row of c has no gaps. end: or NULL. */
__attribute__((target("avx2,fma"))) static void NAME(product)(
    const long rows, const long inner, const long all, const REAL *a, const long a_row, const long a_column,
    const REAL *b, const long b_row, const long b_column, REAL *c, const long c_row, const NAME(end) *end) {
    REAL room[2 * LANES * PIECE];
    if (all <= NARROW && rows >= LANES) {
        NAME(narrow)(rows, inner, (int)all, a, a_row, a_column, b, b_row, b_column, c, c_row);
        return;
    }
    for (long start = 0; start < all;) {
        const long left = all - start;
        const int vectors = left > LANES ? 2 : 1, columns = all < LANES ? (int)all : LANES;
        /* Columns that are left over are computed with some before them. */
        const long first = vectors == 1 && all >= LANES ? all - LANES : start;
        const long second = vectors == 1 ? 0 : left >= 2 * LANES ? LANES : left - LANES;
        for (long p = 0; p == 0 || p < inner; p += PIECE) { /* once without terms: zeros */
            const long piece = inner - p < PIECE ? inner - p : PIECE;
            const REAL *right = b + p * b_row + first * b_column, *from = a + p * a_column;
            const NAME(end) *last = p + PIECE < inner ? NULL : end;
            const REAL *added = end ? end->added + first : NULL;
            long right_row = b_row;
            /* Rows 512 bytes apart share an eighth of the cache: copied, 60 x 41 x 128 in float64 takes 0.9 of the time. */
            const int crowded = piece > 32 && rows > 16 && b_row * (long)sizeof(REAL) % 512 == 0;
            if (b_column != 1 || columns < LANES || crowded) {
                for (int j = 0; j < vectors; j++)
                    NAME(pack)(piece, columns, right + j * second * b_column, b_row, b_column, room + j * second, 2 * LANES);
                right = room, right_row = 2 * LANES;
            }
            if (vectors == 2)
                NAME(panel)(rows, 2, piece, p == 0, from, a_row, a_column, right, right_row, c + first, c_row, second,
                            LANES, last, added);
            else if (columns == LANES)
                NAME(panel)(rows, 1, piece, p == 0, from, a_row, a_column, right, right_row, c + first, c_row, 0, LANES,
                            last, added);
            else
                NAME(panel)(rows, 1, piece, p == 0, from, a_row, a_column, right, right_row, c + first, c_row, 0,
                            columns, last, added);
        }
        start += vectors * LANES;
    }
}
#undef TILE
#undef ROWS
#undef STRIP
